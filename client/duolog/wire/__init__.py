"""Generated stubs of proto/duolog/wire; `make proto` writes them."""
