"""What pages are made of: addresses, words, rates, and the templates filled in. No HTTP."""
