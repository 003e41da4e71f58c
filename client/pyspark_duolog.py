"""Where Spark looks for the data source `duolog`: any module of this kind of name is asked."""

from duolog.spark import DuologDataSource as DefaultSource

__all__ = ["DefaultSource"]
