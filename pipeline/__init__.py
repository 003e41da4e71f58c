"""Jobs on Spark over logs and topics of any size: audit, rebuild, tier, replay, report.

Each is a function of a Spark session, run by `duolog pipeline NAME`, or on a cluster by
`spark-submit cluster/submit.py NAME`: the same code, where the executors see the same files.
"""
