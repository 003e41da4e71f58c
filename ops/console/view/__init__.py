"""Building blocks of pages: addresses, formatting, rates, templates. No HTTP."""
