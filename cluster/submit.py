"""For spark-submit: the same commands as `duolog pipeline`, with the session it brings.

spark-submit --master spark://... cluster/submit.py audit DIR
"""

from node.cli.pipeline import app

if __name__ == "__main__":
    app()
