"""Results as they are kept."""

import json


def keep(path, document):
    """Writes a result as JSON, one line for each part: thousands of samples are no reading matter."""
    parts = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
