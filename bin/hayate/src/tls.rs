//! Certificates of stores and of the hosts that use them: the files of a directory.
//!
//! ```text
//! DIR/ca.pem        the authorities whose certificates are trusted
//! DIR/cert.pem      this side's certificate, and those between it and an authority
//! DIR/key.pem       its private key
//! DIR/clients.toml  of a store: which host may have which image; without it, each may have all
//! ```
//!
//! A store is known by the host or address it is reached at, a client by the first DNS name of its
//! certificate. Both have to show one: there is no anonymous client.

use api::ImageName;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key.pem";
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";
const CLIENTS: &str = "clients.toml";

/// Why certificates cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{path} cannot be read: {why}")]
    Read { path: PathBuf, why: String },
    #[error("{path} cannot be written: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the certificates of {dir} do not go together: {why}")]
    Unfit { dir: PathBuf, why: String },
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
}

fn unfit(dir: &Path) -> impl Fn(String) -> TlsError + '_ {
    |why| TlsError::Unfit { dir: dir.to_owned(), why }
}

/// What a directory has.
struct Files {
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn load(dir: &Path) -> Result<Files, TlsError> {
    let wrong = |path: PathBuf| {
        move |error: rustls::pki_types::pem::Error| TlsError::Read { path, why: error.to_string() }
    };
    let certificates = |name: &str| {
        let path = dir.join(name);
        let all = CertificateDer::pem_file_iter(&path).map_err(wrong(path.clone()))?;
        let all: Vec<_> = all.collect::<Result<_, _>>().map_err(wrong(path.clone()))?;
        match all.is_empty() {
            true => Err(TlsError::Read { path, why: "there is no certificate in it".to_owned() }),
            false => Ok(all),
        }
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(CA)? {
        roots.add(root).map_err(|error| unfit(dir)(error.to_string()))?;
    }
    let path = dir.join(KEY);
    let key = PrivateKeyDer::from_pem_file(&path).map_err(wrong(path))?;
    Ok(Files { roots, chain: certificates(CERT)?, key })
}

/// How disks of this host reach stores.
pub(crate) fn client(dir: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let Files { roots, chain, key } = load(dir)?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = config.with_client_auth_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| unfit(dir)(error.to_string()))?))
}

/// How a store lets clients in.
pub(crate) fn server(dir: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let Files { roots, chain, key } = load(dir)?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let verifier = verifier.map_err(|error| unfit(dir)(error.to_string()))?;
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    let config = config.with_single_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| unfit(dir)(error.to_string()))?))
}

/// The first DNS name of a certificate.
fn name_of(certificate: &[u8]) -> Option<String> {
    let der = CertificateDer::from(certificate);
    let certificate = webpki::EndEntityCert::try_from(&der).ok()?;
    certificate.valid_dns_names().next().map(str::to_owned)
}

/// Which client may have which image.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// By the name in the certificate.
    clients: BTreeMap<String, Rule>,
}

/// Names of images; one that ends with `*` stands for all that begin so.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Images that may be written, and read.
    #[serde(default)]
    write: Vec<String>,
    /// Images that may be read.
    #[serde(default)]
    read: Vec<String>,
}

impl Rules {
    /// Those of a directory; `None`: every client may have every image.
    pub(crate) fn load(dir: &Path) -> Result<Option<Rules>, TlsError> {
        let path = dir.join(CLIENTS);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(TlsError::Read { path, why: error.to_string() }),
            Ok(text) => text,
        };
        let rules = toml::from_str(&text);
        rules.map(Some).map_err(|error| TlsError::Read { path, why: error.to_string() })
    }

    /// Whether the client with this certificate may have an image.
    pub(crate) fn allow(&self, certificate: Option<&[u8]>, image: &ImageName, write: bool) -> bool {
        let rule = certificate.and_then(name_of).and_then(|name| self.clients.get(&name));
        rule.is_some_and(|rule| {
            let covers = |pattern: &String| match pattern.strip_suffix('*') {
                Some(start) => image.as_str().starts_with(start),
                None => image.as_str() == pattern,
            };
            rule.write.iter().any(covers) || (!write && rule.read.iter().any(covers))
        })
    }
}

/// Makes certificates for one side, below `dir/NAME`; and an authority in `dir`, if there is none.
/// Returns the directory for that side.
pub(crate) fn make(
    dir: &Path,
    name: &str,
    addresses: &[String],
    days: u16,
) -> Result<PathBuf, TlsError> {
    let out = dir.join(name);
    for dir in [dir, &out] {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| TlsError::Write { path: dir.to_owned(), source })?;
    }
    let ca = authority(dir)?;
    let mut names = vec![name.to_owned()];
    names.extend_from_slice(addresses);
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let now = SystemTime::now();
    // Clocks differ a little.
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after =
        (now + Duration::from_secs(u64::from(days) * 86_400) - Duration::from_secs(2)).into();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?;
    let files = [
        (CERT, certificate.pem()),
        (KEY, key.serialize_pem()),
        (CA, fs::read_to_string(dir.join(CA)).unwrap_or_default()),
    ];
    for (file, text) in files {
        write(&out.join(file), &text)?;
    }
    Ok(out)
}

/// The authority of a directory, made if there is none.
fn authority(dir: &Path) -> Result<CertifiedIssuer<'static, KeyPair>, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "hayate test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    let path = dir.join(CA_KEY);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(CertifiedIssuer::self_signed(params, KeyPair::from_pem(&text)?)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate()?;
            write(&path, &key.serialize_pem())?;
            let ca = CertifiedIssuer::self_signed(params, key)?;
            write(&dir.join(CA), &ca.pem())?;
            Ok(ca)
        }
        Err(error) => Err(TlsError::Read { path, why: error.to_string() }),
    }
}

/// Writes a file that only its owner reads.
fn write(path: &Path, text: &str) -> Result<(), TlsError> {
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| TlsError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_by_name_and_pattern() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Rules::load(dir.path()).unwrap().is_none());
        let text = "[clients.vm1]\nwrite = [\"web\", \"db-*\"]\nread = [\"tools\"]\n";
        fs::write(dir.path().join(CLIENTS), text).unwrap();
        let rules = Rules::load(dir.path()).unwrap().unwrap();
        make(dir.path(), "vm1", &["10.0.0.1".to_owned()], 1).unwrap();
        make(dir.path(), "vm2", &[], 1).unwrap();
        let der = |name: &str| {
            CertificateDer::from_pem_file(dir.path().join(name).join(CERT)).unwrap().to_vec()
        };
        let (one, two) = (der("vm1"), der("vm2"));
        assert_eq!(name_of(&one).as_deref(), Some("vm1"));
        let image = |text: &str| text.parse::<ImageName>().unwrap();
        let may = |image: &ImageName, write| rules.allow(Some(&one), image, write);
        assert!(
            may(&image("web"), true) && may(&image("db-7"), true) && may(&image("tools"), false)
        );
        assert!(
            !may(&image("tools"), true) && !may(&image("web2"), false) && !may(&image("d"), false)
        );
        assert!(!rules.allow(Some(&two), &image("web"), false));
        assert!(!rules.allow(None, &image("web"), false));
        fs::write(dir.path().join(CLIENTS), "[clients.vm1]\nwirte = []\n").unwrap();
        assert!(Rules::load(dir.path()).unwrap_err().to_string().contains("wirte"));
    }

    #[test]
    fn a_directory_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let missing = client(dir.path()).err().unwrap().to_string();
        assert!(missing.contains("ca.pem"), "{missing}");
        let one = make(dir.path(), "vm1", &[], 1).unwrap();
        let two = make(dir.path(), "store", &["127.0.0.1".to_owned()], 1).unwrap();
        client(&one).unwrap();
        server(&two).unwrap();
        fs::copy(two.join(KEY), one.join(KEY)).unwrap();
        assert!(client(&one).err().unwrap().to_string().contains("do not go together"));
    }
}
