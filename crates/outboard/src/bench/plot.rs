//! A report as a picture: a row of bars for each figure, one bar a case.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Case, Report};

const WIDTH_PX: u32 = 900;
const PANEL_HEIGHT_PX: u32 = 230;

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
    let height = PANEL_HEIGHT_PX * u32::try_from(panels)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        for (area, (title, value)) in root.split_evenly((panels, 1)).iter().zip(&figures) {
            let title = format!("{}: {title}", report.bench);
            panel(area, &title, &report.cases, *value).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn is_measured(report: &Report, value: fn(&Case) -> f64) -> bool {
    report.cases.iter().any(|case| value(case) > 0.0)
}

type Area<'text> = DrawingArea<SVGBackend<'text>, Shift>;

fn panel<'text>(
    area: &Area<'text>,
    title: &str,
    cases: &[Case],
    value: fn(&Case) -> f64,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'text> as DrawingBackend>::ErrorType>> {
    let finite = |case: &Case| Some(value(case)).filter(|value| value.is_finite()).unwrap_or(0.0);
    let most = cases.iter().map(finite).fold(0.0, f64::max);
    // A little air above the highest bar; an axis must have a length even when every bar has none.
    let top = if most > 0.0 { most * 1.1 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(80)
        .build_cartesian_2d((0..cases.len()).into_segmented(), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(cases.len() + 1)
        .y_labels(5)
        .x_label_formatter(&|position| match position {
            SegmentValue::CenterOf(index) => {
                cases.get(*index).map_or_else(String::new, |case| case.case.clone())
            }
            SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
        })
        .draw()?;
    chart.draw_series(cases.iter().enumerate().map(|(index, case)| {
        let corners = [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), finite(case))];
        let mut bar = Rectangle::new(corners, Palette99::pick(index).filled());
        bar.set_margin(0, 0, 20, 20);
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
    fn figures_that_are_no_numbers_and_empty_reports_can_be_drawn() {
        let mut report = sample();
        report.cases[0].ops_per_s = f64::NAN;
        report.cases[1].p50_us = f64::INFINITY;
        plot(&report).unwrap();
        report.cases.clear();
        plot(&report).unwrap();
    }
}
