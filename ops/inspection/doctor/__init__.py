"""What is wrong with a cluster, by what its nodes say. Pure."""
