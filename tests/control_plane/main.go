// Command control-plane is Kubernetes' control plane in one program: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, each by its own name and with its own flags.
//
// One program is built faster and takes less space than four, because they share most of their code.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	components := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	component, known := components[name]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: control-plane "+
			"etcd|kube-apiserver|kube-controller-manager|kube-scheduler FLAGS...")
		os.Exit(2)
	}
	os.Exit(cli.Run(component()))
}
