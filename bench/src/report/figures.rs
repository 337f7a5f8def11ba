//! Figures as in papers: one line for each system, drawn as SVG.

use plotters::prelude::*;

use super::{Report, Row};
use crate::cell::{Kind, Rings};
use crate::sut::System;
use crate::window::Window;

/// A drawing.
pub(crate) struct Figure {
    /// File name.
    pub(crate) name: String,
    /// Its contents.
    pub(crate) svg: String,
}

/// What a figure shows.
struct Plot {
    kind: Kind,
    file: &'static str,
    title: &'static str,
    across: &'static str,
    up: &'static str,
    value: fn(&Row<'_>, &Window) -> Option<f64>,
}

const PLOTS: [Plot; 12] = [
    Plot {
        kind: Kind::Throughput,
        file: "throughput",
        title: "Frames one way between two guests",
        across: "frame size, bytes",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
    Plot {
        kind: Kind::Throughput,
        file: "throughput-bits",
        title: "Throughput one way between two guests",
        across: "frame size, bytes",
        up: "Gbit/s",
        value: |row, window| Some(window.mpps * f64::from(row.cell.size) * 8.0 / 1e3),
    },
    Plot {
        kind: Kind::Touch,
        file: "touch",
        title: "Frames between guests that write and read every byte",
        across: "frame size, bytes",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
    Plot {
        kind: Kind::Rtt,
        file: "rtt",
        title: "Round trip, median",
        across: "frame size, bytes",
        up: "µs",
        value: |_, window| window.round_trips.map(|trips| trips.p50 / 1e3),
    },
    Plot {
        kind: Kind::Rtt,
        file: "rtt-p99",
        title: "Round trip, 99th percentile",
        across: "frame size, bytes",
        up: "µs",
        value: |_, window| window.round_trips.map(|trips| trips.p99 / 1e3),
    },
    Plot {
        kind: Kind::SwitchLoopback,
        file: "switch-loopback",
        title: "Switch loopback, both ways together",
        across: "frame size, bytes",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
    Plot {
        kind: Kind::VmLoopback,
        file: "vm-loopback",
        title: "VM loopback",
        across: "frame size, bytes",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
    Plot {
        kind: Kind::Sides,
        file: "sides",
        title: "CPU of the switch at 500 k frames a second",
        across: "frame size, bytes, and how far frames go",
        up: "% of one CPU",
        value: |_, window| Some(window.cpu),
    },
    Plot {
        kind: Kind::Flows,
        file: "flows",
        title: "Flows between two machines",
        across: "flows",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
    Plot {
        kind: Kind::Routers,
        file: "routers",
        title: "Frames of 64 bytes between two guests with routers between them",
        across: "routers",
        up: "Mpps",
        value: |row, window| (row.cell.size == 64).then_some(window.mpps),
    },
    Plot {
        kind: Kind::Cpu,
        file: "cpu",
        title: "CPU of the switch",
        across: "frames a second",
        up: "% of one CPU",
        value: |_, window| Some(window.cpu),
    },
    Plot {
        kind: Kind::Pairs,
        file: "pairs",
        title: "Pairs of guests on one worker, all together",
        across: "pairs",
        up: "Mpps",
        value: |_, window| Some(window.mpps),
    },
];

/// All figures there is data for.
pub(super) fn draw(report: &Report) -> Vec<Figure> {
    let rows = report.rows();
    let mut figures = Vec::new();
    for plot in &PLOTS {
        for rings in [Rings::Packed, Rings::Split] {
            let mine: Vec<&Row<'_>> = rows
                .iter()
                .filter(|row| (row.cell.kind, row.cell.rings) == (plot.kind, rings))
                .collect();
            let lines = lines(report, plot, &mine);
            if mine.len() < 2 || lines.is_empty() {
                continue;
            }
            let labels: Vec<String> = mine.iter().map(|row| label(row)).collect();
            let title = format!("{}, {} rings", plot.title, rings.as_str());
            // Only a drawing that fails is left out; a string takes everything.
            let frame = Frame { title: &title, across: plot.across, up: plot.up };
            if let Ok(svg) = render(&frame, &labels, &lines) {
                let name = format!("{}-{}.svg", plot.file, rings.as_str());
                figures.push(Figure { name, svg });
            }
        }
    }
    figures.extend(report.disks.iter().flat_map(crate::disk::report::draw));
    figures.extend(report.pods.iter().flat_map(crate::vf::report::draw));
    figures
}

/// A system and its points.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) color: RGBColor,
    /// It may be far above the others: it is drawn as far as there is room.
    pub(crate) limit: bool,
    /// Place in the row of labels, value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What is written around a figure.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) across: &'a str,
    pub(crate) up: &'a str,
}

fn lines(report: &Report, plot: &Plot, rows: &[&Row<'_>]) -> Vec<Line> {
    let mut lines = Vec::new();
    for version in &report.systems {
        let value = |(at, row): (usize, &&Row<'_>)| {
            let summary = row.figure(version.system, |window| (plot.value)(row, window))?;
            Some((at as f64, summary.median))
        };
        let points: Vec<(f64, f64)> = rows.iter().enumerate().filter_map(value).collect();
        if !points.is_empty() {
            let (name, color) = (version.system.as_str(), color(version.system));
            lines.push(Line { name, color, limit: version.system == System::Limit, points });
        }
    }
    lines
}

fn label(row: &Row<'_>) -> String {
    let label = row.cell.label();
    let units = [" B", " frames/s", " pairs", " flows"];
    units.iter().fold(label.as_str(), |label, unit| label.trim_end_matches(unit)).to_owned()
}

fn color(system: System) -> RGBColor {
    match system {
        System::Hayate => RGBColor(0xd5, 0x5e, 0x00),
        System::Testpmd => RGBColor(0x00, 0x72, 0xb2),
        System::Ovs => RGBColor(0x00, 0x9e, 0x73),
        System::HayateLatency => RGBColor(0xe6, 0x9f, 0x00),
        System::HayatePower => RGBColor(0xf0, 0xe4, 0x42),
        System::HayateRouted => RGBColor(0x00, 0x00, 0x00),
        System::OvsSleep => RGBColor(0x56, 0xb4, 0xe9),
        System::Bridge => RGBColor(0xcc, 0x79, 0xa7),
        System::Limit => RGBColor(0x99, 0x99, 0x99),
    }
}

pub(crate) fn render(
    frame: &Frame<'_>,
    labels: &[String],
    lines: &[Line],
) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (720, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let others = lines.iter().filter(|line| !line.limit);
        let all = || others.clone().flat_map(|line| line.points.iter().map(|point| point.1));
        let top = all().fold(0.0_f64, f64::max).max(1e-3) * 1.15;
        let right = labels.len() as f64 - 0.5;
        let mut chart = ChartBuilder::on(&area)
            .caption(frame.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.5..right, 0.0..top)?;
        let name = |at: &f64| {
            let whole = at.round();
            let near = (at - whole).abs() < 1e-6 && whole >= 0.0;
            labels.get(whole as usize).filter(|_| near).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(2 * labels.len() + 1)
            .x_label_formatter(&name)
            .x_desc(frame.across)
            .y_desc(frame.up)
            .light_line_style(WHITE)
            .draw()?;
        for Line { name, color, points, .. } in lines {
            let shown: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x, y.min(top))).collect();
            chart
                .draw_series(LineSeries::new(shown.clone(), color.stroke_width(2)))?
                .label(*name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(shown.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(0xcc, 0xcc, 0xcc))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
