//! `cargo xtask`: parses the command line and calls the verb. What the verbs do is in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::outcome::Outcome;
use xtask::repository::Repository;
use xtask::{
    arm, ci, etcd, fuzz, kernel, loom, miri, paths, peers, planted, redis, results, sim, spdk, tidy,
};

/// Repository chores that cargo itself does not reach.
///
/// `cargo xtask ci` does everything that CI does; the other verbs are its steps, for when you work on one of them.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Ci(ci::Arguments),
    Tidy,
    Sim,
    Loom(loom::Arguments),
    Planted(planted::Arguments),
    Miri,
    Arm,
    Fuzz(fuzz::Arguments),
    Kernel(kernel::Arguments),
    Spdk(spdk::Arguments),
    Redis(redis::Arguments),
    Etcd,
    Peers(peers::Arguments),
    Paths(paths::Arguments),
    Results(results::Arguments),
}

// Each verb's long help is kept beside its code, so that the two change together.
fn command() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
        .mut_subcommand("tidy", |verb| verb.about(tidy::ABOUT).long_about(tidy::long_about()))
        .mut_subcommand("sim", |verb| verb.about(sim::ABOUT).long_about(sim::LONG_ABOUT))
        .mut_subcommand("etcd", |verb| verb.about(etcd::ABOUT).long_about(etcd::LONG_ABOUT))
        .mut_subcommand("miri", |verb| verb.about(miri::ABOUT).long_about(miri::LONG_ABOUT))
        .mut_subcommand("arm", |verb| verb.about(arm::ABOUT).long_about(arm::LONG_ABOUT))
}

fn run() -> Result<Outcome> {
    let matches = command().get_matches();
    let arguments = <Arguments as clap::FromArgMatches>::from_arg_matches(&matches)?;
    let repository = Repository::here()?;
    match arguments.verb {
        Verb::Ci(arguments) => ci::run(&repository, &arguments),
        Verb::Tidy => tidy::run(&repository),
        Verb::Sim => sim::run(&repository),
        Verb::Loom(arguments) => loom::run(&repository, &arguments),
        Verb::Planted(arguments) => planted::run(&repository, &arguments),
        Verb::Miri => miri::run(&repository),
        Verb::Arm => arm::run(&repository),
        Verb::Fuzz(arguments) => fuzz::run(&repository, &arguments),
        Verb::Kernel(arguments) => kernel::run(&repository, &arguments),
        Verb::Spdk(arguments) => spdk::run(&repository, &arguments),
        Verb::Redis(arguments) => redis::run(&repository, &arguments),
        Verb::Etcd => etcd::run(&repository),
        Verb::Peers(arguments) => peers::run(&repository, &arguments),
        Verb::Paths(arguments) => paths::run(&repository, &arguments),
        Verb::Results(arguments) => results::run(&repository, &arguments),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
