//! What the verifier says of a program, for people and for scripts.

use std::time::Instant;

use ob_ebpf::compiler;
use ob_ebpf::program::SourceLine;
use ob_ebpf::verifier::{self, Accepted, Check, Options, Refused};
use serde_json::json;

use super::load::{Loaded, load};
use super::{BpfError, RunFailure, StatsOptions, VerifyOptions};
use crate::terminal::{BAD, FAINT, GOOD, say, styled, table};

pub(super) fn verify(options: &VerifyOptions) -> Result<(), BpfError> {
    let loaded = load(&options.file)?;
    let how = Options { is_strict: options.strict, ..Options::default() };
    match verifier::verify(&loaded.program, loaded.world, how) {
        Ok(accepted) if options.json => say(&accepted_json(&loaded, &accepted).to_string())?,
        Ok(accepted) => say(&accepted_text(&accepted))?,
        Err(refused) => {
            if options.json {
                say(&refused_json(&refused).to_string())?;
            } else {
                say(&refused_text(&refused))?;
            }
            return Err(BpfError::Refused);
        }
    }
    Ok(())
}

/// The program as it can be run, or why not, told.
pub(super) fn accepted(loaded: &Loaded, is_json: bool) -> Result<Accepted, BpfError> {
    match verifier::verify(&loaded.program, loaded.world, Options::default()) {
        Ok(accepted) => Ok(accepted),
        Err(refused) => {
            let told = if is_json { refused_json(&refused).to_string() } else { refused_text(&refused) };
            say(&told)?;
            Err(BpfError::Refused)
        }
    }
}

fn accepted_text(accepted: &Accepted) -> String {
    let Accepted { checks, accesses, steps, .. } = accepted;
    let mut text = format!(
        "{}: {} of {accesses} accesses are proven, {} are checked when it runs ({steps} steps)",
        styled(GOOD, "accepted"),
        accesses.saturating_sub(checks.len()),
        checks.len()
    );
    for check in checks {
        let argument = check.argument.map_or_else(String::new, |register| format!(", {register}"));
        text.push_str(&format!("\n  instruction {}{argument}: {}", check.at, check.why));
        if let Some(line) = &check.line {
            text.push_str(&format!("\n    {}", styled(FAINT, &line_text(line))));
        }
    }
    text
}

fn refused_text(refused: &Refused) -> String {
    format!("{}: {}", styled(BAD, "refused"), refused.to_string().trim_end())
}

fn line_text(line: &SourceLine) -> String {
    format!("{}:{}: {}", line.file, line.line, line.text.trim())
}

fn accepted_json(loaded: &Loaded, accepted: &Accepted) -> serde_json::Value {
    let check = |check: &Check| {
        json!({
            "instruction": check.at, "slot": loaded.program.slot(check.at),
            "argument": check.argument.map(|register| register.to_string()), "region": check.region.name(),
            "why": check.why, "line": check.line.as_ref().map(line_text),
        })
    };
    json!({
        "accepted": true, "accesses": accepted.accesses, "steps": accepted.steps,
        "checks": accepted.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

fn refused_json(refused: &Refused) -> serde_json::Value {
    let registers = refused.registers.iter().map(|(register, value)| (register.to_string(), json!(value)));
    json!({
        "accepted": false, "instruction": refused.at, "text": refused.instruction,
        "why": refused.why.to_string(), "line": refused.line.as_ref().map(line_text),
        "path": refused.path.iter().map(|(at, taken)| json!({ "branch": at, "taken": taken })).collect::<Vec<_>>(),
        "registers": registers.collect::<serde_json::Map<_, _>>(),
    })
}

pub(super) fn stats(options: &StatsOptions) -> Result<(), BpfError> {
    let loaded = load(&options.file)?;
    let begun = Instant::now();
    let accepted = accepted(&loaded, options.json)?;
    let verified_us = begun.elapsed().as_micros();
    let begun = Instant::now();
    let compiled =
        compiler::compile(&accepted.verified, compiler::Options::default()).map_err(RunFailure::from)?;
    let compiled_us = begun.elapsed().as_micros();
    let program = &loaded.program;
    let counts = [
        ("hook", json!(loaded.world.name)),
        ("instructions", json!(program.instructions().len())),
        ("functions", json!(program.functions().len())),
        ("variants", json!(accepted.verified.variants().len())),
        ("read_only_bytes", json!(program.read_only().len())),
        ("per_call_bytes", json!(program.per_call().len())),
        ("data_len_min", json!(program.data_len_min())),
        ("accesses", json!(accepted.accesses)),
        ("checks", json!(accepted.checks.len())),
        ("verifier_steps", json!(accepted.steps)),
        ("verified_us", json!(verified_us as u64)),
        ("compiled_us", json!(compiled_us as u64)),
        ("code_bytes", json!(compiled.code_len())),
        ("stack_bytes", json!(compiled.stack_len())),
    ];
    if options.json {
        let counts = counts.into_iter().map(|(name, value)| (name.to_owned(), value));
        say(&serde_json::Value::Object(counts.collect()).to_string())?;
    } else {
        let text =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let rows: Vec<Vec<String>> =
            counts.iter().map(|(name, value)| vec![(*name).to_owned(), text(value)]).collect();
        say(&table(&["what", "count"], &rows))?;
    }
    Ok(())
}
