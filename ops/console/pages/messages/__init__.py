"""Messages: they are found, and one of them is shown with its whole way."""
