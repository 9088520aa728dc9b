#!/bin/bash
# Harbor has its tests at /tests and its logs at /logs; TESTS_DIR and LOGS_DIR name them where there is no such path.
logs=${LOGS_DIR:-/logs}

if python3 "${TESTS_DIR:-/tests}/check.py"; then
    echo 1 >"$logs/verifier/reward.txt"
else
    echo 0 >"$logs/verifier/reward.txt"
fi
