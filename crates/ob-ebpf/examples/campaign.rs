//! Tries programs of many seeds: `cargo run --release -p ob-ebpf --features campaign --example campaign -- --seeds 0..1000000`.
//!
//! `--compiled-share N` compiles one of N accepted programs, `--states-share N` compares what is known of one of N, `--runs N` calls
//! each so often; 0 is none. What is found is shrunk, and printed as text with the command that repeats it.

use std::env;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use ob_ebpf::campaign::{Campaign, Plan};

/// Seeds between two lines of progress.
const PROGRESS: u64 = 1 << 18;
/// What is found is printed so often; more of the same is of no use.
const FOUND_MAX: u64 = 20;

fn main() -> ExitCode {
    let (seeds, plan) = match arguments() {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!(
                "{what}\nusage: campaign --seeds A..B [--compiled-share N] [--states-share N] [--runs N]"
            );
            return ExitCode::from(2);
        }
    };
    let (mut campaign, begin, mut found) = (Campaign::new(plan), Instant::now(), 0);
    for seed in seeds.clone() {
        if let Some(breach) = campaign.run(seed) {
            found += 1;
            println!(
                "{breach}repeat with: cargo run --release -p ob-ebpf --features campaign --example campaign -- --seeds {seed}..{} --compiled-share 1 --states-share 1\n",
                seed + 1
            );
            if found == FOUND_MAX {
                break;
            }
        }
        if campaign.tally.generated.is_multiple_of(PROGRESS) {
            let each = begin.elapsed().as_secs_f64() * 1e6 / campaign.tally.generated as f64;
            eprintln!("seed {seed}, {each:.1} us a program, {found} found");
        }
    }
    let each = begin.elapsed().as_secs_f64() * 1e6 / campaign.tally.generated.max(1) as f64;
    println!("{}{each:.1} us a program, {found} found", campaign.tally);
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> Result<(Range<u64>, Plan), String> {
    let (mut seeds, mut plan) = (0..100_000, Plan::default());
    let mut arguments = env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value} is no number"));
        match name.as_str() {
            "--seeds" => {
                let (first, end) = value.split_once("..").ok_or_else(|| format!("{value} is no range"))?;
                let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
                seeds = number(first)?..number(end)?;
            }
            "--compiled-share" => plan.compiled_share = number()?,
            "--states-share" => plan.states_share = number()?,
            "--runs" => plan.runs = number()? as usize,
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok((seeds, plan))
}
