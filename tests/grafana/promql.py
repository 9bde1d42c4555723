"""What a query in PromQL selects."""

import re
from dataclasses import dataclass

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[[^]]*\]|[A-Za-z_:][\w:]*|\d[\w.]*|\S')
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:\\.|[^"\\])*)"')
LISTS_LABELS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}


@dataclass(frozen=True)
class Selector:
    """A metric with its matchers, as the query has them."""

    name: str
    matchers: str

    def __str__(self):
        return self.name + self.matchers

    def words(self):
        """The values of labels that the matchers name, each with its label; none of a variable."""
        for label, _, value in MATCHER.findall(self.matchers):
            for word in value.split("|"):
                if re.fullmatch(r"\w+", word):
                    yield label, word


def selectors(query):
    """The selectors of a query, which is valid."""
    tokens = TOKEN.findall(query)
    found = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        after = tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token in LISTS_LABELS:
            if after == "(":
                at = tokens.index(")", at) + 1
            continue
        if not re.match(r"[A-Za-z_:]", token) or token.lower() in OPERATORS:
            continue
        if after == "(" or after in LISTS_LABELS - {"on", "ignoring"}:
            continue
        matchers = ""
        if after == "{":
            end = tokens.index("}", at)
            matchers = "".join(tokens[at : end + 1])
            at = end + 1
        found.append(Selector(token, matchers))
    return found
