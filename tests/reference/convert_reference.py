"""Gives raw tables of recorded runs the columns that came since, as null; removes logs and pages. Usage: FOLDER..."""
import json, shutil, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from squall.analysis.schema import TABLES, arrow_schema
from squall.analysis.storage.part import OpenPart, table_entry
from squall.analysis.tables.document import to_json
def convert(run):
    m = json.loads((run / "manifest.json").read_text())
    shutil.rmtree(run / "logs", ignore_errors=True); (run / "report.html").unlink(missing_ok=True)
    for folder in sorted((run / "tables").iterdir()):
        if TABLES[folder.name].is_derived: continue
        schema = arrow_schema(folder.name); parts = sorted(folder.glob("*.parquet")); changed = False
        for path in parts:
            t = pq.ParquetFile(path).read()
            missing = [f for f in schema if f.name not in t.column_names]
            if missing:
                assert all(f.nullable for f in missing), missing
                changed = True; print(run.name, folder.name, [f.name for f in missing])
                t = pa.table([t[f.name].cast(f.type) if f.name in t.column_names else pa.nulls(len(t), f.type) for f in schema], schema=schema)
                path.unlink(); part = OpenPart(path, folder.name, lambda p: open(p, "wb")); part.write(t); part.close()
        if changed and (m.get("tables") or {}).get(folder.name):
            m["tables"][folder.name] = to_json(table_entry(run, parts))
    (run / "manifest.json").write_text(json.dumps(m, indent=2) + "\n")
for top in sys.argv[1:]:
    for one in sorted(Path(top).rglob("manifest.json")): convert(one.parent)
