"""Reads cargo's messages; copies the programs that it has built and lists the test programs: path in the
checkout, package folder."""

import json
import pathlib
import shutil
import sys

# The examples that tests of other packages start.
EXAMPLES = {"10", "12", "13", "16", "17", "18", "20"}

top, folder, left_out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), set(sys.argv[3:])
tests = []
for line in sys.stdin:
    message = json.loads(line)
    if message["reason"] != "compiler-artifact" or not message["executable"]:
        continue
    program = pathlib.Path(message["executable"]).relative_to(top)
    name, is_test = message["target"]["name"], message["profile"]["test"]
    if is_test and name in left_out:
        print("left out:", name)
        continue
    if not is_test and name[:2].isdigit() and name[:2] not in EXAMPLES:
        continue
    to = folder / "programs" / program
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, to)
    if is_test and "bench" not in message["target"]["kind"]:
        package = pathlib.Path(message["manifest_path"]).parent.relative_to(top)
        tests.append(f"{program} {package}")
(folder / "tests.txt").write_text("\n".join(tests) + "\n")
(folder / "top.txt").write_text(f"{top}\n")
print(len(tests), "test programs")
