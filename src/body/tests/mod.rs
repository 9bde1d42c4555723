mod buffer;
mod replay;
