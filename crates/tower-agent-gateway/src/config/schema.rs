//! The JSON Schema of a whole configuration, by which editors complete and check a file.
//!
//! It is made of the tables into which a file is read, so that it knows the same keys. It has no
//! references: editors for TOML show the description of a key only where the key stands.

use schemars::{
    Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Map, Value};
use tower_agent::config::AgentConfig;

use super::{OwnTables, owner_caps::CAP_KEYS};

/// The schema, as the text of a JSON document.
pub(super) fn of_document() -> String {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut generator = settings.with_transform(Tidy).into_generator();
    let own = schema_of::<OwnTables>(&mut generator);
    let mut schema = generator.into_root_schema_for::<AgentConfig>().to_value();
    schema["title"] = "A configuration of tower-agent-gateway".into();
    schema["required"] = vec!["candidates"].into();
    let tables = &mut schema["properties"];
    tables["candidates"]["minItems"] = 1.into();
    for (name, table) in own["properties"].as_object().into_iter().flatten() {
        tables[name] = table.clone();
    }
    add_caps(tables);
    format!("{schema:#}\n")
}

fn schema_of<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.root_schema_for::<T>().to_value()
}

/// Adds the caps of owners to the tables `[agents.NAME]`, but for `[agents.defaults]`.
fn add_caps(tables: &mut Value) {
    let of_auth = tables["auth"]["properties"].clone();
    let agents = &mut tables["agents"];
    let defaults = agents["additionalProperties"].clone();
    for key in CAP_KEYS {
        agents["additionalProperties"]["properties"][key] = of_auth[key].clone();
    }
    agents["properties"] = Map::from_iter([("defaults".to_owned(), defaults)]).into();
}

/// Leaves out what TOML does not have, and what other readers of schemas do not know.
#[derive(Clone, Debug)]
struct Tidy;

impl Transform for Tidy {
    fn transform(&mut self, schema: &mut Schema) {
        let Some(object) = schema.as_object_mut() else {
            return;
        };
        // TOML has no null.
        if let Some(Value::Array(types)) = object.get_mut("type") {
            types.retain(|it| it != "null");
            if let [one] = &**types {
                object["type"] = one.clone();
            }
        }
        if let Some(Value::Array(values)) = object.get_mut("enum") {
            values.retain(|it| !it.is_null());
        }
        if let Some(default) = object.get_mut("default") {
            // Of a whole table, its keys have their own.
            if default.is_null() || default.is_object() {
                object.remove("default");
            }
        }
        if let Some(Value::Array(choices)) = object.remove("oneOf") {
            // The variants of an enum, each with a description.
            let values = choices.iter().map(|it| it["const"].clone());
            object.insert("enum".into(), values.collect());
            object.insert("type".into(), "string".into());
        }
        // Formats such as `uint16` are no standard ones.
        object.remove("format");
        if let Some(Value::String(text)) = object.get_mut("description") {
            *text = text.replace('\n', " ");
        }
        transform_subschemas(self, schema);
    }
}
