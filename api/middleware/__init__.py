"""What every request passes: error boundary, proxy, access, admission."""
