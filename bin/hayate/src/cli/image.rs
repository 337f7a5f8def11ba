//! `hayate image`.

use super::args::{ImageCommand, ImageMount, Output};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::mount;
use crate::render::{Table, facts, units};
use api::{Export, Image, ImageCheck, ImageConfig, ImageName, Import, Progress, Resize, Snapshot};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) fn command(client: &Client, command: ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Create { name, size, format, output } => {
            let config = ImageConfig { size: Some(size), format, clone_of: None };
            one(&client.put(&format!("/v1/images/{name}"), &config)?, output)
        }
        ImageCommand::Clone { base, name, output } => {
            let config = ImageConfig { size: None, format: None, clone_of: Some(base) };
            one(&client.put(&format!("/v1/images/{name}"), &config)?, output)
        }
        ImageCommand::Import(args) => {
            let import = Import {
                file: absolute(&args.file)?,
                format: args.format,
                image_format: args.to,
                sha256: args.sha256,
                checksum: args.checksum,
            };
            let path = format!("/v1/images/{}/import", args.name);
            one(&followed(client, &path, &import, "importing")?, args.output)
        }
        ImageCommand::Export { name, file, format, force, output } => {
            let export = Export { file: absolute(&file)?, format, force };
            let path = format!("/v1/images/{name}/export");
            one(&followed(client, &path, &export, "exporting")?, output)
        }
        ImageCommand::Snapshot { name, snapshot, output } => {
            let path = format!("/v1/images/{name}/snapshots");
            one(&client.post(&path, &Snapshot { snapshot })?, output)
        }
        ImageCommand::Resize { name, size, shrink, output } => {
            let path = format!("/v1/images/{name}/resize");
            one(&client.post(&path, &Resize { size, shrink })?, output)
        }
        ImageCommand::List(output) => list(client, output),
        ImageCommand::Show { name, output } => show(client, &name, output),
        ImageCommand::Del { name } => client.delete(&format!("/v1/images/{name}")),
        ImageCommand::Check { name, output } => check(client, &name, output),
        ImageCommand::Mount(args) => mount(args),
    }
}

/// It needs no daemon.
fn mount(args: ImageMount) -> Result<(), Failure> {
    let ImageMount { store, dir, readonly, cache, transport, tls_dir, store_timeout, log } = args;
    let transport = transport.unwrap_or(api::Transport::Auto);
    let patience = store_timeout.map(Duration::from_secs);
    let options = mount::Options { store, dir, readonly, cache, patience, transport, tls_dir, log };
    mount::run(&options).map_err(|error| Failure::mount(&error))
}

/// The daemon may run in another directory.
fn absolute(file: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(file)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn one(image: &Image, output: Output) -> Result<(), Failure> {
    if output.json { out::json(image) } else { Ok(()) }
}

/// Asks for something that takes long, and shows how far it is while somebody looks.
fn followed(
    client: &Client,
    path: &str,
    body: &impl serde::Serialize,
    what: &'static str,
) -> Result<Image, Failure> {
    // Where standard error is no terminal, it draws nothing.
    let bar = ProgressBar::no_length().with_message(what);
    let shape = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(shape) {
        bar.set_style(style);
    }
    let mut ended = None;
    let followed = client.follow(path, body, |line| match line {
        Progress::Bytes(done, total) => {
            bar.set_length(total);
            bar.set_position(done);
        }
        Progress::Done(image) => ended = Some(Ok(image)),
        Progress::Failed(error) => ended = Some(Err(error)),
    });
    bar.finish_and_clear();
    followed?;
    match ended {
        Some(Ok(image)) => Ok(image),
        Some(Err(error)) => Err(error.into()),
        None => Err(Failure::host("the daemon went away before it was done")),
    }
}

fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let images: Vec<Image> = client.get("/v1/images")?;
    if output.json {
        return out::json(&images);
    }
    let mut table = Table::new(["IMAGE", "FORMAT", ">SIZE", ">ON HOST", "STANDS ON", ">AGE"]);
    for image in &images {
        table.row([
            image.name.to_string(),
            image.format.to_string(),
            units::bytes(image.size),
            units::bytes(image.allocated),
            image.backing.as_ref().map(ImageName::to_string).unwrap_or_default(),
            units::age(image.created.age()),
        ]);
    }
    out::text(&table.to_string())
}

fn show(client: &Client, name: &ImageName, output: Output) -> Result<(), Failure> {
    let image: Image = client.get(&format!("/v1/images/{name}"))?;
    if output.json {
        return out::json(&image);
    }
    let names = |names: &Option<Vec<ImageName>>| {
        let names = names.iter().flatten().map(ImageName::as_str);
        names.collect::<Vec<_>>().join(", ")
    };
    out::text(&facts(&[
        ("image", format!("{} ({})", image.name, image.format)),
        ("size", format!("{} ({} bytes)", units::bytes(image.size), image.size)),
        ("on the host", units::bytes(image.allocated)),
        ("stands on", names(&image.chain)),
        ("needed by", names(&image.clones)),
        ("in use", image.used.clone().unwrap_or_else(|| "no".to_owned())),
        ("made", image.created.to_string()),
        ("sha256", image.sha256.clone().unwrap_or_default()),
    ]))
}

fn check(client: &Client, name: &ImageName, output: Output) -> Result<(), Failure> {
    let check: ImageCheck = client.post(&format!("/v1/images/{name}/check"), &())?;
    if output.json {
        out::json(&check)?;
    }
    if !check.sound {
        let errors = check.errors.join("\n  ");
        return Err(Failure::host(format!("image {name} is damaged:\n  {errors}")));
    }
    if output.json {
        return Ok(());
    }
    let leaks = match check.leaked_clusters {
        0 => String::new(),
        leaks => format!("; {} that nothing uses", units::count(leaks as usize, "cluster")),
    };
    out::text(&format!("image {name} is whole: {} of data{leaks}", units::bytes(check.allocated)))
}
