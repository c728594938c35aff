"""One kernel on devices, along a size or in configurations, side by side: beneath the service, the command line and Python"""
