//! Mounts under test: hayate's of a store, and gfarm2fs.

use std::fs;

use super::gfarm::Gfarm;
use super::hayate::Host;
use super::sut::{Backend, Images, write_random};
use crate::sut::SutError;

/// Starts a store that has the image, and `hayate image mount` of it, on one CPU. The kernel may cache what
/// is read, for who does not say O_DIRECT.
///
/// # Errors
/// One of them cannot be started.
pub(super) fn fuse(images: &Images, transport: &str, cpu: usize) -> Result<Backend, SutError> {
    let host = Host::new(images, cpu)?;
    // The daemon makes an image, and is not needed any more.
    let daemon = host.daemon()?;
    host.image(images, 0)?;
    drop(daemon);
    let (server, at) = host.store(&host.place())?;
    let mnt = host.dir.path().join("mnt");
    fs::create_dir(&mnt).map_err(SutError::io("a directory to mount at"))?;
    let (place, at) = (format!("store://{at}/"), mnt.display().to_string());
    let start = ["taskset", "-c", &host.cpu, &host.program, "image", "mount", &place, &at];
    let how = ["--cache", "--transport", transport, "--log", "warn,fuser=error"];
    let mut process = host.start("hayate image mount", &[&start[..], &how].concat())?;
    let path = mnt.join("d0");
    process.wait_for(10, || fs::metadata(&path).ok())?;
    Ok(Backend {
        file: Some(images.file(0)?),
        path: Some(path),
        process: Some(process),
        server: Some(server),
        ..Backend::new(host.dir)
    })
}

/// Starts Gfarm and gfarm2fs on one CPU, with a file of the images' size.
///
/// # Errors
/// Something of it cannot be started, or the file not be written.
pub(super) fn gfarm(images: &Images, cpu: usize) -> Result<Backend, SutError> {
    let gfarm = Gfarm::start(images, true, cpu)?;
    let path = gfarm.mount().join("d0");
    let written = write_random(&path, images.size());
    written.map_err(SutError::io("a file of Gfarm cannot be written"))?;
    let (file, path) = (Some(gfarm.spool()), Some(path));
    Ok(Backend { file, path, gfarm: Some(gfarm), ..Backend::new(crate::sut::directory()?) })
}
