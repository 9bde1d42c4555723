mod json_validator;
mod request_fields;
mod volatile_words;
