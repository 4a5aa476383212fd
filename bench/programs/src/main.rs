//! The contenders of `outboard bench bpf` that are no part of the product, in a process that is asked over its standard input:
//!
//! ```text
//!   workload NAME ANSWER_LEN DATA QUERIES ─▶         (bytes in hexadecimal)
//!                                         ◀─ ready CONTENDER DIGEST │ absent CONTENDER WHY …, end
//!   measure CONTENDER LAPS                ─▶
//!                                         ◀─ took NANOSECONDS       (of processor time)
//! ```
//!
//! All of them run what is compiled from the programs' own source: native code by a C compiler, eBPF, WebAssembly.

mod harness;
#[cfg(native_c)]
mod native;
mod other_ebpf;
mod web_assembly;

use std::io::{BufRead, Write};

use harness::{Contender, QUERY_LEN, Query, Workload};

/// What goes wrong, for people.
type Failure = Box<dyn std::error::Error>;

/// How each contender is made.
type Make = fn(&Workload) -> Result<Box<dyn Contender>, Failure>;

const CONTENDERS: [(&str, Make); 4] = [
    ("native_c", native_c),
    ("rbpf", |workload| Ok(Box::new(other_ebpf::Rbpf::new(workload)?))),
    ("wasmtime", |workload| Ok(Box::new(web_assembly::Sandbox::new(workload, false)?))),
    ("wasmtime_fuel", |workload| Ok(Box::new(web_assembly::Sandbox::new(workload, true)?))),
];

#[cfg(native_c)]
fn native_c(workload: &Workload) -> Result<Box<dyn Contender>, Failure> {
    Ok(Box::new(native::Native::new(workload)?))
}

#[cfg(not(native_c))]
fn native_c(_: &Workload) -> Result<Box<dyn Contender>, Failure> {
    Err("there was no C compiler when the peers were built".into())
}

fn main() -> Result<(), Failure> {
    // Should who asks us be killed, its end of the pipe is closed, and we are done.
    let mut ready: Vec<(&str, Box<dyn Contender>)> = Vec::new();
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["workload", name, answer_len, data, queries] => {
                let workload = parse_workload(name, answer_len, data, queries)?;
                ready.clear();
                for (name, make) in CONTENDERS {
                    match make(&workload) {
                        Ok(mut contender) => {
                            writeln!(output, "ready {name} {:016x}", contender.digest(&workload))?;
                            ready.push((name, contender));
                        }
                        Err(why) => writeln!(output, "absent {name} {}", one_line(&why.to_string()))?,
                    }
                }
                writeln!(output, "end")?;
            }
            ["measure", name, laps] => {
                let known = ready.iter_mut().find(|(known, _)| *known == name);
                let (_, contender) = known.ok_or_else(|| format!("there is no contender {name}"))?;
                writeln!(output, "took {}", contender.measure(laps.parse()?).as_nanos())?;
            }
            _ => return Err(format!("`{line}` is not understood").into()),
        }
        output.flush()?;
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn parse_workload(name: &str, answer_len: &str, data: &str, queries: &str) -> Result<Workload, Failure> {
    let queries = bytes_of(queries)?;
    let (queries, rest) = queries.as_chunks::<QUERY_LEN>();
    if !rest.is_empty() {
        return Err("the last query is cut".into());
    }
    let queries: Vec<Query> = queries.to_vec();
    Ok(Workload { name: name.to_owned(), answer_len: answer_len.parse()?, data: bytes_of(data)?, queries })
}

fn bytes_of(text: &str) -> Result<Vec<u8>, Failure> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err("half a byte".into());
    }
    pairs.iter().map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}
