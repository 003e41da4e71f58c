"""What waits, or was given up, is recalled, decided on, and sent again."""
