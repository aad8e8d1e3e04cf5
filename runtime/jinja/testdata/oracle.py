"""Writes what Jinja2 makes of the templates in cases.json, set up as Hugging
Face's transformers does: python3 oracle.py (jinja2 3.1.6)."""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

PATH = pathlib.Path(__file__).with_name("cases.json")


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 7, 9, 13, 5, 6).strftime(f)

data = json.loads(PATH.read_text())
for case in data["cases"]:
    case.pop("out", None)
    case.pop("err", None)
    try:
        case["out"] = env.from_string(case["src"]).render(**json.loads(json.dumps(data["vars"])))
    except Exception as e:
        case["err"] = str(e) or type(e).__name__
lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in data["cases"])
PATH.write_text('{"vars": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(data["vars"], ensure_ascii=False), lines))
