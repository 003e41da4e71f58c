"""Jobs on Spark over logs and topics of any size: audit, rebuild, tier, replay, report.

Each is a function of a Spark session, run by `duolog pipeline NAME` and by
`spark-submit cluster/submit.py NAME`; the same on `local[*]` and on a cluster whose executors see the
same files.
"""
