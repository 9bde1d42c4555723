mod backoff;
mod bucket;
mod bucket_loom;
mod bucket_model;
mod bucket_threads;
mod budget;
