//! A report as a picture: a row of bars for each figure, one bar a case.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Case, Report};

const WIDTH_PX: u32 = 900;
const PANEL_HEIGHT_PX: u32 = 230;
/// More cases than these have a line each: their names do not fit beside each other.
const CASES_BESIDE: usize = 8;
const LINE_HEIGHT_PX: u32 = 18;
/// Room for the longest name.
const NAMES_WIDTH_PX: u32 = 260;

type Figure = (&'static str, fn(&Case) -> f64);

const FIGURES: &[Figure] = &[
    ("operations a second", |case| case.ops_per_s),
    ("p50, µs", |case| case.p50_us),
    ("p99, µs", |case| case.p99_us),
    ("client CPU an operation, µs", |case| case.cpu.client_cpu_us.unwrap_or(0.0)),
    ("card CPU an operation, µs", |case| case.cpu.card_cpu_us.unwrap_or(0.0)),
    ("host CPU an operation, µs", |case| case.cpu.host_cpu_us.unwrap_or(0.0)),
];

/// Draws the report as SVG.
pub fn plot(report: &Report) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let figures: Vec<&Figure> = FIGURES.iter().filter(|(_, value)| is_measured(report, *value)).collect();
    let panels = figures.len().max(1);
    let is_lines = report.cases.len() > CASES_BESIDE;
    let panel_height = match is_lines {
        true => 80 + LINE_HEIGHT_PX * u32::try_from(report.cases.len())?,
        false => PANEL_HEIGHT_PX,
    };
    let height = panel_height * u32::try_from(panels)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        for (area, (title, value)) in root.split_evenly((panels, 1)).iter().zip(&figures) {
            let title = format!("{}: {title}", report.bench);
            let draw = if is_lines { lines } else { panel };
            draw(area, &title, &report.cases, *value).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn is_measured(report: &Report, value: fn(&Case) -> f64) -> bool {
    report.cases.iter().any(|case| value(case) > 0.0)
}

type Area<'text> = DrawingArea<SVGBackend<'text>, Shift>;

type Drawn<'text> = Result<(), DrawingAreaErrorKind<<SVGBackend<'text> as DrawingBackend>::ErrorType>>;

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Where the axis ends.
fn top(cases: &[Case], value: fn(&Case) -> f64) -> f64 {
    let most = cases.iter().map(|case| finite(value(case))).fold(0.0, f64::max);
    // A little air above the highest bar; an axis must have a length even when every bar has none.
    if most > 0.0 { most * 1.1 } else { 1.0 }
}

/// The name of the case at a place of an axis.
fn name_at(cases: &[Case], position: &SegmentValue<usize>) -> String {
    match position {
        SegmentValue::CenterOf(index) => cases.get(*index).map_or_else(String::new, |case| case.case.clone()),
        SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
    }
}

fn panel<'text>(area: &Area<'text>, title: &str, cases: &[Case], value: fn(&Case) -> f64) -> Drawn<'text> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(80)
        .build_cartesian_2d((0..cases.len()).into_segmented(), 0.0..top(cases, value))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(cases.len() + 1)
        .y_labels(5)
        .x_label_formatter(&|position| name_at(cases, position))
        .draw()?;
    chart.draw_series(cases.iter().enumerate().map(|(index, case)| {
        let corners =
            [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), finite(value(case)))];
        let mut bar = Rectangle::new(corners, Palette99::pick(index).filled());
        bar.set_margin(0, 0, 20, 20);
        bar
    }))?;
    Ok(())
}

/// The same turned around: bars go to the right, the first case on top.
fn lines<'text>(area: &Area<'text>, title: &str, cases: &[Case], value: fn(&Case) -> f64) -> Drawn<'text> {
    let reversed: Vec<Case> = cases.iter().rev().cloned().collect();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(NAMES_WIDTH_PX)
        .build_cartesian_2d(0.0..top(cases, value), (0..cases.len()).into_segmented())?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_labels(5)
        .y_labels(cases.len() + 1)
        .y_label_formatter(&|position| name_at(&reversed, position))
        .draw()?;
    chart.draw_series(reversed.iter().enumerate().map(|(index, case)| {
        let corners =
            [(0.0, SegmentValue::Exact(index)), (finite(value(case)), SegmentValue::Exact(index + 1))];
        let mut bar = Rectangle::new(corners, Palette99::pick(index).filled());
        bar.set_margin(3, 3, 0, 0);
        bar
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    #[test]
    fn a_picture_names_cases_and_leaves_out_what_was_not_measured() {
        let text = plot(&sample()).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("progress") && text.contains("sample: p99, µs"));
        assert!(!text.contains("host CPU"));
    }

    #[test]
    fn many_cases_have_a_line_each() {
        let mut report = sample();
        let one = report.cases[0].clone();
        report.cases = (0..40).map(|number| Case { case: format!("case_{number}"), ..one.clone() }).collect();
        report.cases[3].p99_us = f64::NAN;
        let text = plot(&report).unwrap();
        for number in 0..40 {
            assert!(text.lines().any(|line| line.trim() == format!("case_{number}")), "{number}");
        }
    }

    #[test]
    fn figures_that_are_no_numbers_and_empty_reports_can_be_drawn() {
        let mut report = sample();
        report.cases[0].ops_per_s = f64::NAN;
        report.cases[1].p50_us = f64::INFINITY;
        plot(&report).unwrap();
        report.cases.clear();
        plot(&report).unwrap();
    }
}
