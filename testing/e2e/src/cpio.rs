//! The cpio format of initramfs archives ("newc", Documentation/driver-api/early-userspace of
//! Linux). Archives may simply follow one another, which is how the test program gets into a guest.

/// Appends one file (or, with `data` of `None`, a folder) to an archive.
pub fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, data: Option<&[u8]>) {
    let kind = if data.is_some() { 0o100_000 } else { 0o040_000 };
    record(archive, name, kind | mode, data.unwrap_or(&[]));
}

/// Ends an archive.
pub fn finish(archive: &mut Vec<u8>) {
    record(archive, "TRAILER!!!", 0, &[]);
}

fn record(archive: &mut Vec<u8>, name: &str, mode: u32, data: &[u8]) {
    archive.extend_from_slice(b"070701");
    // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
    // namesize, check
    let (size, name_size) = (data.len(), name.len() + 1);
    let fields = [0, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(data);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_unpacks_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut a = Vec::new();
        entry(&mut a, "d", 0o755, None);
        entry(&mut a, "d/odd", 0o644, Some(b"12345"));
        finish(&mut a);
        let file = dir.path().join("a.cpio");
        std::fs::write(&file, &a).unwrap();
        let script = format!("cd {} && cpio --quiet -id < a.cpio", dir.path().display());
        crate::process::run("sh", &["-c", &script]).unwrap();
        assert_eq!(std::fs::read(dir.path().join("d/odd")).unwrap(), b"12345");
    }
}
