mod buffering;
mod replay;
