"""What the user talks to, on the driver: command line, experiment, driver, trackers, reports."""
