"""What a job found, as Parquet in a place where there was nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escapement.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_new(found: DataFrame, output: str) -> None:
    """Write it as one file, with whatever else Spark puts there.

    Raises:
      InvalidRequest: if there is something at ``output``.
    """
    from pyspark.errors import AnalysisException

    try:
        # Spark Connect does not know it as "errorifexists".
        found.coalesce(1).write.mode("error").parquet(output)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise InvalidRequest(
            f"there is something at {output} already: name another place"
        ) from None
