#!/usr/bin/env bash
# Sets up and builds what is missing, then runs every test. The last line is "N passed, N failed, N skipped".
#   OSCAR_TEST_DATA   a folder of reference data; tests that need it are skipped without it
#   OSCAR_TEST_MODEL  another copy of SmolLM2-135M-Instruct.Q4_1.gguf
#   OSCAR_TEST_PYTHON a Python with torch, safetensors, h5py, gguf and transformers, for the interoperability tests
#   OSCAR_TEST_JOBS   tests at a time (2)
# Arguments go to ctest: tests/run.sh -R '^formats\.'
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./setup.sh
if [[ -z ${OSCAR_TEST_MODEL-} ]]; then
  echo "==> Model of the tests"
  examples/get_model.sh || echo "    tests that need the model will be skipped"
fi

results=$PWD/build/release/test-results.xml
rm -f "$results"
code=0
ctest --test-dir build/release --parallel "${OSCAR_TEST_JOBS:-2}" --output-on-failure --output-junit "$results" "$@" || code=$?

/usr/bin/env python3 - "$results" "$code" <<'PYTHON'
import os, re, sys
import xml.etree.ElementTree as xml

path, code = sys.argv[1], int(sys.argv[2])
passed, failed, skipped = 0, [], {}
for case in xml.parse(path).getroot().iter("testcase") if os.path.exists(path) else []:
    if case.get("status") == "run":
        passed += 1
    elif case.find("failure") is not None or case.get("status") == "fail":
        failed.append(case.get("name"))
    else:
        # GoogleTest prints "file:line: Skipped" and the reason on the line below.
        reason = re.search(r"Skipped\n(.+)", case.findtext("system-out") or "")
        skipped.setdefault(reason.group(1).strip() if reason else case.get("status", "not run"), []).append(case.get("name"))
for reason, names in sorted(skipped.items()):
    print(f"\nSkipped, {reason}:")
    for name in names:
        print(f"  {name}")
if failed:
    print("\nFailed:")
    for name in failed:
        print(f"  {name}")
ran = passed + len(failed)
if not ran:
    print("\nNo test ran.")
print()
print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
sys.exit(1 if failed or not ran else code)
PYTHON
