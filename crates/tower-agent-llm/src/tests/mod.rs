mod form_fields;
mod json_validator;
mod prompt_tokens;
mod request_fields;
mod stated;
mod usage;
mod volatile_words;
