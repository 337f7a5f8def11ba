//! Certificates of an authority that is made up.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub(crate) struct Certificates(CertifiedIssuer<'static, KeyPair>);

impl Certificates {
    pub(crate) fn new() -> Certificates {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Certificates(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    fn one(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (vec![certificate.der().clone()], key.into())
    }

    /// Of a store on 127.0.0.1.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let (chain, key) = self.one("127.0.0.1");
        let verifier = WebPkiClientVerifier::builder(Arc::new(self.roots())).build().unwrap();
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        Arc::new(config.with_single_cert(chain, key).unwrap())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let (chain, key) = self.one("client");
        let config = ClientConfig::builder().with_root_certificates(self.roots());
        Arc::new(config.with_client_auth_cert(chain, key).unwrap())
    }
}
