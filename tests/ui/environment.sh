# What tests/ui/run and tests/ui/pictures need, sourced from the top of the repository: Debian's Chromium
# and fonts, Playwright for Python below the target folder, and a gateway. Sets `python` and `GATEWAY`.
target=${CARGO_TARGET_DIR:-target}
venv=$target/ui
python=$venv/bin/python
requirements=tests/ui/requirements.txt

if ! command -v chromium > /dev/null; then
    { apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu; } > /dev/null 2>&1 || true
fi
if ! chromium --version 2> /dev/null; then
    echo "chromium is missing, and Debian's could not be installed: the page is not tested"
    exit 1
fi

# The copy is made last: a broken install is never taken for a good one.
if ! cmp -s "$requirements" "$venv/installed.txt"; then
    python3 -m venv --clear "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$venv/installed.txt"
fi

if [ -z "${GATEWAY:-}" ]; then
    cargo build --quiet -p tower-agent-gateway
    GATEWAY=$target/debug/tower-agent-gateway
fi
