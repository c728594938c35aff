"""What a night measures with: this machine's CPU, its GPU, a fleet, or recorded rows."""
