//! The program's flags, with their variables; the doc comment of each is its text in `--help`.

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
};

use clap::CommandFactory as _;
use clap_complete::Shell;
use tower_agent_gateway::OperatorCommand;

/// The name of the installed program.
const PROGRAM: &str = "tower-agent-gateway";

/// A gateway for clients of the OpenAI and Anthropic APIs; it supervises every run.
#[derive(Debug, clap::Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "To operate a gateway that runs"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<OperatorCommand>,
    /// The TOML configuration; without it a simulated upstream serves.
    #[arg(long, value_name = "FILE", env = "TOWER_AGENT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Has simulated agents call the simulated upstream, so that the page at /ui has something to show.
    #[arg(long, conflicts_with_all = ["config", "check", "print_config"])]
    pub(crate) demo_load: bool,
    /// The address to listen on; port 0 takes any free one.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "TOWER_AGENT_LISTEN",
        default_value = "127.0.0.1:8787"
    )]
    pub(crate) listen: SocketAddr,
    /// Checks a configuration with its environment variables, and serves nothing.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// With --check: asks each candidate for its models, for up to 5 s.
    #[arg(long, requires = "check")]
    pub(crate) probe: bool,
    /// Checks a configuration, and prints it with each value in force; serves nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub(crate) print_config: Option<PathBuf>,
    /// Prints the JSON Schema of the configuration, for editors.
    #[arg(long, exclusive = true)]
    pub(crate) schema: bool,
    /// Prints the completions of a shell for this program.
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub(crate) completions: Option<Shell>,
    /// Prints the manual page of this program.
    #[arg(long, exclusive = true)]
    pub(crate) man: bool,
}

/// Writes the script by which a shell completes the flags and commands of the program.
pub(crate) fn write_completions(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), PROGRAM, &mut script);
    out.write_all(&script)
}

/// Writes the manual page of the program, in the format of `man`.
pub(crate) fn write_manual_page(mut out: &mut dyn Write) -> io::Result<()> {
    clap_mangen::Man::new(Args::command().name(PROGRAM)).render(&mut out)
}
