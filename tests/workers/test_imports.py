"""Packages that nobody uses are not imported, and stay importable."""

from __future__ import annotations

import pytest

from tests.fresh_python import in_fresh_python

USE = """
import pyarrow as pa, pyarrow.parquet as pq, numpy as np
table = pa.table({"a": pa.array([1.0, None]), "b": np.zeros(2), "c": ["x", None]})
table["b"].to_numpy(); pa.array(np.ones(2, dtype=np.float16)).to_numpy()
sink = pa.BufferOutputStream(); pq.write_table(table, sink)
assert pq.read_table(pa.BufferReader(sink.getvalue())).to_pylist() == table.to_pylist()
"""


@pytest.mark.parametrize("first", ["", "import pyarrow", "import pyarrow.parquet"])
def test_arrow_does_without_pandas(first: str) -> None:
    code = f"""
import sys
before = list(sys.meta_path)
{first}
from workers.imports import spare_pandas
spare_pandas(); spare_pandas()
{USE}
print("pandas" in sys.modules, sys.meta_path[:len(before)] == before)
import pandas
print(table.to_pandas()["c"].isna().tolist())
"""
    assert in_fresh_python(code).splitlines() == ["False True", "[False, True]"]


def test_arrow_imports_pandas_where_nobody_says_otherwise() -> None:
    """Else the above shows nothing."""
    assert in_fresh_python(f"import sys{USE}print('pandas' in sys.modules)") == "True"


def test_pandas_that_is_there_already_is_left_to_arrow() -> None:
    code = """
import pandas as pd
from workers.imports import spare_pandas
spare_pandas()
import pyarrow as pa
print(pa.array([pd.NA, 1], from_pandas=True).to_pylist())
"""
    assert in_fresh_python(code) == "[None, 1]"


def test_another_thread_may_import_what_is_out_of_sight_meanwhile() -> None:
    code = """
import importlib, threading
from workers.imports import out_of_sight
found = []
def look():
    try: importlib.import_module('colorsys'); found.append('there')
    except ModuleNotFoundError: found.append('absent')
with out_of_sight('colorsys'):
    look()
    thread = threading.Thread(target=look); thread.start(); thread.join()
print(*found)
"""
    assert in_fresh_python(code) == "absent there"
