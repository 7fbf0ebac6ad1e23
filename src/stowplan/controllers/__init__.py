"""The reconcile loops of the embedded cluster (`running.Controllers`): Deployments, Jobs and others."""
