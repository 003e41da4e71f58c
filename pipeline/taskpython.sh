#!/bin/sh
# Python with the PySpark that is installed, not the one in the archives that Spark puts before all
# packages: Python compiles those anew in each process.
rest=
IFS=:
for place in $PYTHONPATH; do
  case $place in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) rest="$rest:$place" ;;
  esac
done
export PYTHONPATH="${rest#:}"
exec "$DUOLOG_TASK_PYTHON" "$@"
