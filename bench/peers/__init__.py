"""duolog beside its peers: one machine, one run, one broker and one client each, in turns."""
