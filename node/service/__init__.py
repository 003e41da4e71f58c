"""What a broker does, as every protocol calls it: typed values, and no protocol's messages."""
