#!/bin/sh
# The Python of Spark's tasks on this machine, without what Spark puts in front of all that it looks
# through: its own zip, which each process compiles anew, and a jar, of which each task reads the list
# of files. The same package of Spark is installed, compiled. ${DWELL_SPARK_PYTHON} has it.
kept=
set -f
IFS=:
for place in ${PYTHONPATH}; do
    case ${place} in
        "${SPARK_HOME:--}"/python/lib/pyspark.zip | "${SPARK_HOME:--}"/python/lib/py4j-*-src.zip) ;;
        "${SPARK_HOME:--}"/jars/spark-core_*.jar) ;;
        *) kept=${kept:+${kept}:}${place} ;;
    esac
done
PYTHONPATH=${kept}
export PYTHONPATH
exec "${DWELL_SPARK_PYTHON:-python3}" "$@"
