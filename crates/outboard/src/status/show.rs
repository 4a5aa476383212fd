//! A status for people.

use std::time::Duration;

use super::{
    FilesStatus, FunctionStatus, HalfState, HalfStatus, Health, KvStatus, NvmeStatus, Severity, Status,
};
use crate::terminal::{BAD, FAINT, GOOD, HEADING, WARNING, bytes, counted, duration, styled, table};

/// The whole status as text, several lines without a last line's end.
#[must_use]
pub fn show(status: &Status) -> String {
    let health = match status.health {
        Health::Ok => styled(GOOD, "ok"),
        Health::Degraded => styled(WARNING, "degraded"),
        Health::Failing => styled(BAD, "failing"),
    };
    let mut parts = vec![format!("{} {health}", styled(HEADING, "health:"))];
    parts.extend(status.checks.iter().map(|check| {
        let style = if check.severity == Severity::Error { BAD } else { WARNING };
        format!("  {} {} — {}", styled(style, &check.code), check.summary, check.hint)
    }));
    parts.push(String::new());
    parts.push(table(
        &["half", "state", "pid", "incarnation", "uptime", "cpu", "cpu share"],
        &[half_row("card", &status.card), half_row("host", &status.host)],
    ));
    parts.push(String::new());
    parts.push(link_lines(status));
    parts.push(String::new());
    if let Some(files) = &status.files {
        parts.push(files_lines(files));
        parts.push(String::new());
    }
    if let Some(nvme) = &status.nvme {
        parts.push(nvme_lines(nvme));
        parts.push(String::new());
    }
    if let Some(kv) = &status.kv {
        parts.push(kv_lines(kv));
        parts.push(String::new());
    }
    if let Some(volumes) = &status.volumes {
        parts.push(volumes.lines());
        parts.push(String::new());
    }
    parts.push(request_lines(status));
    parts.join("\n")
}

fn half_row(name: &str, half: &HalfStatus) -> Vec<String> {
    let state = match half.state {
        HalfState::Running => "running",
        HalfState::Attached => "attached",
        HalfState::NotAttached => "not attached",
    };
    let uptime = half.uptime_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let cpu = half.cpu_us.map(Duration::from_micros);
    let share = match (cpu, uptime) {
        (Some(cpu), Some(uptime)) if !uptime.is_zero() => {
            Some(format!("{:.2} %", 100.0 * cpu.as_secs_f64() / uptime.as_secs_f64()))
        }
        _ => None,
    };
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        name.to_owned(),
        state.to_owned(),
        or_dash(half.pid.map(|pid| pid.to_string())),
        or_dash(half.incarnation.map(|incarnation| incarnation.to_string())),
        or_dash(uptime.map(duration)),
        or_dash(cpu.map(duration)),
        or_dash(share),
    ]
}

fn link_lines(status: &Status) -> String {
    let link = &status.link;
    let probe = match link.probe_ns {
        Some(time) => format!("{:.1} µs", Duration::from_nanos(time).as_secs_f64() * 1e6),
        None => "-".to_owned(),
    };
    format!(
        "{} {}\n  hosts      {}\n  probe      {probe}\n  DMA reads  {} ({} bytes)\n  DMA writes {} ({} bytes)\n  \
         DMA words  {} bytes",
        styled(HEADING, "link:"),
        link.endpoint,
        link.hosts,
        link.dma_reads,
        link.dma_read_bytes,
        link.dma_writes,
        link.dma_written_bytes,
        link.dma_word_bytes
    )
}

fn files_lines(files: &FilesStatus) -> String {
    let read_only = if files.read_only { styled(BAD, " (read-only)") } else { String::new() };
    format!(
        "{} {}{read_only}\n  space      {} free of {}, in segments of {}\n  holds      {}, {}\n  \
         log        {} used of {}\n  reads      {} ({})\n  writes     {} ({})\n  others     {} metadata, {} flushes\n  \
         copied     {} pieces that were not aligned\n  errors     {}",
        styled(HEADING, "files:"),
        files.device,
        bytes(files.free_bytes),
        bytes(files.total_bytes),
        bytes(files.segment_bytes),
        counted(files.files, "file", "files"),
        counted(files.directories, "directory", "directories"),
        bytes(files.log_used_bytes),
        bytes(files.log_bytes),
        files.reads,
        bytes(files.read_bytes),
        files.writes,
        bytes(files.written_bytes),
        files.metadata,
        files.flushes,
        files.unaligned,
        files.errors
    )
}

fn nvme_lines(nvme: &NvmeStatus) -> String {
    let NvmeStatus { hold_ups, .. } = nvme;
    format!(
        "{} {}, discovery at {}\n  serves     {}\n  initiators {}, {}, {} of {}\n  reads      {} ({})\n  \
         writes     {} ({})\n  others     {} control, {} flushes, {} write zeroes, {} dataset, {} compares, {} verifies\n  \
         network    {} in, {} out\n  failed     {} commands; connections: {} refused, {} protocol errors, {} timeouts\n  \
         under way  {}; waiting: {} for a buffer, {} for blocks\n  \
         held up    {} now; so far {} for a buffer, {} by a full queue, {} unread answers, {} connecting\n  \
         buffers    {} in use of {}, exhausted {} times",
        styled(HEADING, "nvme:"),
        nvme.address,
        nvme.discovery,
        counted(nvme.namespaces as u64, "namespace", "namespaces"),
        nvme.hosts,
        counted(nvme.controllers, "controller", "controllers"),
        counted(nvme.connections, "connection", "connections"),
        nvme.connections_max,
        nvme.reads,
        bytes(nvme.read_bytes),
        nvme.writes,
        bytes(nvme.written_bytes),
        nvme.control_commands,
        nvme.flushes,
        nvme.write_zeroes,
        nvme.dataset_managements,
        nvme.compares,
        nvme.verifies,
        bytes(nvme.received_bytes),
        bytes(nvme.sent_bytes),
        nvme.failed,
        nvme.refused,
        nvme.protocol_errors,
        nvme.timeouts,
        counted(nvme.in_flight, "command", "commands"),
        nvme.waiting_for_buffer,
        nvme.waiting_for_range,
        counted(nvme.held_up, "connection", "connections"),
        hold_ups.buffer,
        hold_ups.queue_full,
        hold_ups.unsent,
        hold_ups.connect,
        bytes(nvme.buffer_used_bytes),
        bytes(nvme.buffer_bytes),
        nvme.buffers_exhausted
    ) + &nvme.functions.as_ref().map(function_lines).unwrap_or_default()
}

fn function_lines(functions: &FunctionStatus) -> String {
    format!(
        "\n  functions  {}, {} open, {} prepared; {} under way\n  \
         requests   {} ({} answered, {} over a file that changed, {} given up), {} reads ({}); waited {} times for a share",
        counted(functions.programs, "program", "programs"),
        counted(functions.files, "file", "files"),
        counted(functions.plans, "plan", "plans"),
        functions.running,
        functions.requests,
        functions.answered,
        functions.changed,
        functions.given_up,
        functions.reads,
        bytes(functions.read_bytes),
        functions.over_share
    )
}

fn kv_lines(kv: &KvStatus) -> String {
    format!(
        "{} {}\n  clients    {}; so far {} accepted, {} refused, {} protocol errors, {} starved, {} closed \
         for memory\n  \
         table      {} of {} entries in {}, {} tombstones\n  \
         admitted   {}; refused {} as outdated, {} for want of a place; evicted {}\n  \
         records    {} offered, {} attested, {} dropped\n  reads      {}\n  \
         host       {}, {} sent away; {} requests told to try again",
        styled(HEADING, "kv:"),
        kv.address,
        counted(kv.connections, "connection", "connections"),
        kv.accepted,
        kv.refused,
        kv.protocol_errors,
        kv.starved,
        kv.closed_for_memory,
        kv.table_entries,
        kv.table_slots,
        bytes(kv.table_bytes),
        kv.table_tombstones,
        kv.table_admitted,
        kv.table_refused_stale,
        kv.table_refused_full,
        kv.table_evicted,
        kv.offered,
        kv.attested,
        kv.dropped,
        kv.reads,
        counted(kv.host_lives, "life", "lives"),
        kv.host_refused,
        kv.unavailable,
    )
}

fn request_lines(status: &Status) -> String {
    if status.requests.is_empty() {
        return format!("{} {}", styled(HEADING, "requests:"), styled(FAINT, "none yet"));
    }
    let rows: Vec<Vec<String>> = status
        .requests
        .iter()
        .map(|request| {
            vec![
                request.service.clone(),
                request.half.to_string(),
                request.reason.clone(),
                request.count.to_string(),
            ]
        })
        .collect();
    format!(
        "{}\n{}",
        styled(HEADING, "requests:"),
        table(&["service", "answered by", "reason", "count"], &rows)
    )
}
