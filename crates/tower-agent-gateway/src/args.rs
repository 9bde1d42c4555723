use std::{net::SocketAddr, path::PathBuf};

pub(crate) const USAGE: &str = "usage: gateway [--config FILE] [--listen ADDR]

  --config FILE  the TOML configuration; without it a simulated upstream serves
  --listen ADDR  address and port, by default 127.0.0.1:8787; port 0 takes any";

/// The arguments of the command line.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) config: Option<PathBuf>,
    pub(crate) listen: SocketAddr,
}

impl Args {
    /// Parses the arguments; `None` if they ask for the usage.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut parsed = Self {
            config: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
        };
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .ok_or_else(|| format!("{arg} needs a value\n{USAGE}"))
            };
            match arg.as_str() {
                "--config" => parsed.config = Some(value()?.into()),
                "--listen" => {
                    let text = value()?;
                    let bad = |error| format!("--listen {text}: {error}, wanted IP:PORT");
                    parsed.listen = text.parse().map_err(bad)?;
                }
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown argument {arg}\n{USAGE}")),
            }
        }
        Ok(Some(parsed))
    }
}
