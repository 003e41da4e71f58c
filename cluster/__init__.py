"""What one deploys, and the driver that breaks it."""
