"""What a broker does, as every protocol calls it: typed values, and no protocol's messages.

Batches of sinks are the exception: they are staged as append requests of the native API
(requests.py), because the next master stores what its predecessor staged.
"""
