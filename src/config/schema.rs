//! JSON Schemas of the configuration and of its values, for editors; behind the feature `schema`.
//!
//! A schema knows the shape of a document: its keys, the types and the ranges of their values. What
//! one key says about another is checked by [`AgentConfig`] alone.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{
    AgentConfig,
    tables::{ALIASES, Class, File},
    values::{BoundedCount, BoundedNumber, Span, Url},
};
use crate::llm::failure::FailureClass;

/// Times as humantime reads them. White space may stand between the digits of a number.
const TIME: &str = "^\\s*([0-9][0-9\\s]*(\\.[0-9\\s]*[0-9][0-9\\s]*)?\
                    (nanos|nsec|ns|usec|us|\u{b5}s|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m\
                    |hours?|hrs?|h|days?|d|weeks?|wks?|w|months?|years?|yrs?|y)\\s*)+$|^0$";

/// An absolute `http` or `https` URL without credentials, query and fragment.
const URL: &str = "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\s]+(/[^?#\\s]*)?$";

/// Adds the names that agents' own configurations have for keys of a table.
pub(super) fn with_aliases(schema: &mut Schema) {
    let properties = schema.get_mut("properties");
    let Some(properties) = properties.and_then(|it| it.as_object_mut()) else {
        return;
    };
    for (name, alias) in ALIASES {
        let Some(mut property) = properties.get(name).cloned() else {
            continue;
        };
        property["description"] = format!("Another name of `{name}`.").into();
        properties.insert(alias.to_owned(), property);
    }
}

impl JsonSchema for AgentConfig {
    fn schema_name() -> Cow<'static, str> {
        "AgentConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        File::json_schema(generator)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A text such as \"1500ms\" or \"1h 30m\", or a number of seconds.",
            "type": ["string", "number"],
            "pattern": TIME,
            "minimum": 0,
        })
    }
}

impl<const LEAST: u32, const MOST: u32> JsonSchema for BoundedCount<LEAST, MOST> {
    fn schema_name() -> Cow<'static, str> {
        format!("Count{LEAST}To{MOST}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": LEAST, "maximum": MOST })
    }
}

impl<const MOST: u32> JsonSchema for BoundedNumber<MOST> {
    fn schema_name() -> Cow<'static, str> {
        format!("Number0To{MOST}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": MOST })
    }
}

impl JsonSchema for Url {
    fn schema_name() -> Cow<'static, str> {
        "Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An absolute http or https URL without credentials, query and fragment.",
            "type": "string",
            "pattern": URL,
        })
    }
}

impl JsonSchema for Class {
    fn schema_name() -> Cow<'static, str> {
        "FailureClass".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = FailureClass::ALL.map(FailureClass::as_str);
        json_schema!({ "type": "string", "enum": names })
    }
}
