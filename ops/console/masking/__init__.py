"""What a viewer sees of a message: every page that shows one asks here."""
